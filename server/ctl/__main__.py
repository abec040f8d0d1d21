from server.ctl.main import main

main()
